// The executor under mpiexec.
#include "drive.h"

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  drive(MPI_COMM_WORLD);
  MPI_Finalize();
}
