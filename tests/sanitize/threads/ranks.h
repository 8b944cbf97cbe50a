// The ranks of a world of threads.
#pragma once

#include <mpi.h>

#include <vector>

// The handles of the ranks on one communicator over all of them.
std::vector<MPI_Comm> make_ranks(int size);
