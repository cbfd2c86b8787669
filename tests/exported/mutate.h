#pragma once

#include <random>
#include <string>
#include <vector>

#include "tests/exported/zip_writer.h"

namespace stagecraft {

/// An archive that is changed at random: bits, pieces and the end of the file, or of its texts, or
/// what stands in them: members taken away, values of another kind, extreme numbers, names of
/// something else, nodes that come twice. The same bytes for the same numbers.
std::string mutate(const std::vector<ZipMember>& archive, std::mt19937_64& random);

/// The members of an archive that is not damaged and not compressed.
std::vector<ZipMember> read_zip(const std::string& bytes);

}  // namespace stagecraft
