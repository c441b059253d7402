#include "rare_functions.h"

#include <array>
#include <cmath>
#include <cstdint>

#include "../mtia_runtime.h"

namespace torch_mtia::runtime::host {
namespace {

using Unary = double (*)(double);
using Indexed = double (*)(int32_t, double);
using Binary = double (*)(double, double);

// I0 is even and I1 odd; the standard library has them for arguments from 0 on, and throws where it does not converge.
// Computed in double precision it loses up to five bits.
double cyl_bessel_i(double order, double x) noexcept {
  if (std::isnan(x)) return x;
  const double magnitude = std::fabs(x);
  // Beyond, the result overflows.
  const double value =
      magnitude > 720 ? HUGE_VAL : static_cast<double>(std::cyl_bessel_i(static_cast<long double>(order), magnitude));
  return order == 1 && x < 0 ? -value : value;
}

using Table = std::array<const void*, MTIA_RARE_COUNT>;

template <typename Function>
void set(Table& table, mtia_rare_function index, Function function) {
  table[index] = reinterpret_cast<const void*>(function);
}

Table make_table() {
  Table table{};
  set<Unary>(table, MTIA_RARE_LGAMMA, [](double x) {
    int sign = 0;  // of Gamma(x); plain lgamma keeps it in a global variable
    return ::lgamma_r(x, &sign);
  });
  set<Unary>(table, MTIA_RARE_TGAMMA, ::tgamma);
  set<Unary>(table, MTIA_RARE_J0, ::j0);
  set<Unary>(table, MTIA_RARE_J1, ::j1);
  set<Unary>(table, MTIA_RARE_Y0, ::y0);
  set<Unary>(table, MTIA_RARE_Y1, ::y1);
  set<Unary>(table, MTIA_RARE_CYL_BESSEL_I0, [](double x) { return cyl_bessel_i(0, x); });
  set<Unary>(table, MTIA_RARE_CYL_BESSEL_I1, [](double x) { return cyl_bessel_i(1, x); });
  set<Unary>(table, MTIA_RARE_SIN, ::sin);
  set<Unary>(table, MTIA_RARE_COS, ::cos);
  set<Unary>(table, MTIA_RARE_TAN, ::tan);
  set<Indexed>(table, MTIA_RARE_JN, ::jn);
  set<Indexed>(table, MTIA_RARE_YN, ::yn);
  set<Binary>(table, MTIA_RARE_POW, ::pow);
  set<Binary>(table, MTIA_RARE_FMOD, ::fmod);
  set<Binary>(table, MTIA_RARE_REMAINDER, ::remainder);
  return table;
}

}  // namespace

const void* const* rare_functions() {
  static const Table table = make_table();
  return table.data();
}

}  // namespace torch_mtia::runtime::host
