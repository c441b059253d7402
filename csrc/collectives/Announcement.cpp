#include "Announcement.h"

#include <algorithm>
#include <cstring>
#include <sstream>

namespace torch_mtia::collectives {
namespace {

// Another rank has written the text: its end is not taken for granted.
template <size_t size>
std::string text_of(const char (&text)[size]) {
  return {text, strnlen(text, size)};
}

bool is_same_call(const Announcement& one, const Announcement& other) {
  return std::memcmp(&one.signature, &other.signature, sizeof(Signature)) == 0 &&
         one.reduction.type == other.reduction.type && one.reduction.operation == other.reduction.operation;
}

}  // namespace

void Announcement::set(const Call& call, const std::optional<Reduction>& reduction, std::span<const uint64_t> to,
                       std::span<const uint64_t> from) {
  signature = call.signature;
  is_reduction = reduction.has_value();
  this->reduction = reduction.value_or(Reduction{});
  std::copy(to.begin(), to.end(), bytes);
  std::copy(from.begin(), from.end(), bytes + to.size());
}

std::string call_of(const Announcement& announcement, int rank) {
  const Signature& signature = announcement.signature;
  std::ostringstream text;
  text << "; rank " << rank << ": " << text_of(signature.collective);
  if (announcement.is_reduction) text << " " << name_of(announcement.reduction.operation);
  if (signature.dtype[0] != 0) text << " of " << text_of(signature.dtype);
  if (signature.root >= 0) text << " with root " << signature.root;
  if (signature.number != 0) text << " (call " << signature.number << ")";
  return text.str();
}

void check_same_calls(std::span<const Announcement* const> announcements, std::span<const int> names) {
  for (const Announcement* each : announcements) {
    if (is_same_call(*each, *announcements[0])) continue;
    std::string text = "the ranks have called different collectives";
    for (size_t rank = 0; rank < names.size(); ++rank) text += call_of(*announcements[rank], names[rank]);
    throw MismatchError(text);
  }
}

uint64_t agree_on_sizes(std::span<const Announcement* const> announcements, std::span<const int> names) {
  const size_t size = announcements.size();
  uint64_t most = 0;
  for (size_t giver = 0; giver < size; ++giver) {
    for (size_t taker = 0; taker < size; ++taker) {
      const uint64_t given = announcements[giver]->bytes[taker];
      const uint64_t expected = announcements[taker]->bytes[size + giver];
      if (given != expected) {
        std::ostringstream text;
        text << "the ranks disagree on sizes: rank " << names[giver] << " gives " << given << " bytes to rank "
             << names[taker] << ", which expects " << expected;
        throw MismatchError(text.str());
      }
      if (giver != taker || size == 1) most = std::max(most, given);
    }
  }
  return most;
}

}  // namespace torch_mtia::collectives
