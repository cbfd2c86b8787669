#pragma once

#include <optional>
#include <string>

#include "stagecraft/transport/mpi/mpi_plugin.h"

namespace stagecraft::detail {

enum class MpiKind { kOpenMpi, kMpich };

/// The MPI whose launcher started this process, from the environment. STAGECRAFT_MPI=openmpi or
/// mpich (ArgumentError for any other text) overrides the variables of mpirun and srun. Nothing
/// without a launcher.
std::optional<MpiKind> find_mpi_kind();

/// Loads the plug-in. Looks at STAGECRAFT_MPI_PLUGIN if that is set; otherwise beside this program,
/// in the lib folders next to it and above it, where the library was installed, and where the
/// system looks. ArgumentError that says how to get it.
const MpiPlugin& load_mpi_plugin(MpiKind kind);

}  // namespace stagecraft::detail
