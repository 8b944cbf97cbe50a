// The executor with a thread for each rank, beside its own background threads.
#include <thread>

#include "../drive.h"
#include "ranks.h"

int main() {
  std::vector<std::thread> threads;
  for (MPI_Comm rank : make_ranks(4)) threads.emplace_back(drive, rank);
  for (std::thread& thread : threads) thread.join();
}
