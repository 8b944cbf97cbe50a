// Puts an executor through its paces: a ring, windows, several operations at once, and a rank that does not
// come.
#pragma once

#include <mpi.h>

// Collective.
void drive(MPI_Comm comm);
