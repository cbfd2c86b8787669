#pragma once

#include <random>
#include <string>
#include <vector>

#include "tests/exported/zip_writer.h"

namespace stagecraft {

/// An archive that is changed at random: bits, pieces and the end of the file or of its texts, or
/// the JSON in the texts: removed members, values of a different kind, extreme numbers, wrong
/// names, duplicate nodes. The same random numbers give the same bytes.
std::string mutate(const std::vector<ZipMember>& archive, std::mt19937_64& random);

/// The members of an archive that is not damaged and not compressed.
std::vector<ZipMember> read_zip(const std::string& bytes);

}  // namespace stagecraft
