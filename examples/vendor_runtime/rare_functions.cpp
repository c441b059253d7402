#include "rare_functions.h"

#include <cmath>
#include <cstdint>

#include "mtia_runtime.h"

namespace vendor {
namespace {

double log_gamma(double x) {
  int sign = 0;
  return lgamma_r(x, &sign);
}

double bessel_i(double order, double x) {
  if (std::isnan(x)) return x;
  const double value = std::fabs(x) > 700 ? HUGE_VAL : std::cyl_bessel_i(order, std::fabs(x));
  return order == 1 && x < 0 ? -value : value;
}

double bessel_i0(double x) {
  return bessel_i(0, x);
}
double bessel_i1(double x) {
  return bessel_i(1, x);
}

struct Table {
  const void* functions[MTIA_RARE_COUNT];

  void set(mtia_rare_function index, double (*function)(double)) { put(index, function); }
  void set(mtia_rare_function index, double (*function)(int32_t, double)) { put(index, function); }
  void set(mtia_rare_function index, double (*function)(double, double)) { put(index, function); }

  Table() {
    set(MTIA_RARE_LGAMMA, log_gamma);
    set(MTIA_RARE_TGAMMA, static_cast<double (*)(double)>(tgamma));
    set(MTIA_RARE_J0, static_cast<double (*)(double)>(j0));
    set(MTIA_RARE_J1, static_cast<double (*)(double)>(j1));
    set(MTIA_RARE_Y0, static_cast<double (*)(double)>(y0));
    set(MTIA_RARE_Y1, static_cast<double (*)(double)>(y1));
    set(MTIA_RARE_CYL_BESSEL_I0, bessel_i0);
    set(MTIA_RARE_CYL_BESSEL_I1, bessel_i1);
    set(MTIA_RARE_SIN, static_cast<double (*)(double)>(sin));
    set(MTIA_RARE_COS, static_cast<double (*)(double)>(cos));
    set(MTIA_RARE_TAN, static_cast<double (*)(double)>(tan));
    set(MTIA_RARE_JN, static_cast<double (*)(int32_t, double)>(jn));
    set(MTIA_RARE_YN, static_cast<double (*)(int32_t, double)>(yn));
    set(MTIA_RARE_POW, static_cast<double (*)(double, double)>(pow));
    set(MTIA_RARE_FMOD, static_cast<double (*)(double, double)>(fmod));
    set(MTIA_RARE_REMAINDER, static_cast<double (*)(double, double)>(remainder));
  }

 private:
  template <typename Function>
  void put(mtia_rare_function index, Function function) {
    functions[index] = reinterpret_cast<const void*>(function);
  }
};

}  // namespace

const void* const* rare_functions() {
  static const Table table;
  return table.functions;
}

}  // namespace vendor
