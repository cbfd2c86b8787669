#pragma once

#include <optional>
#include <string>

#include "stagecraft/transport/mpi/mpi_plugin.h"

namespace stagecraft::detail {

enum class MpiKind { kOpenMpi, kMpich };

/// Whose launcher has started this process, by what it has put into the environment:
/// STAGECRAFT_MPI=openmpi or mpich (ArgumentError for another text) goes before what mpirun and
/// srun set. Nothing where no launcher was at work.
std::optional<MpiKind> find_mpi_kind();

/// The plug-in for it, loaded. It is looked for at STAGECRAFT_MPI_PLUGIN if that is set, else
/// beside this program, in the lib folder next to it or above it, where the library was installed,
/// and where the system looks. ArgumentError that says how to get it.
const MpiPlugin& load_mpi_plugin(MpiKind kind);

}  // namespace stagecraft::detail
