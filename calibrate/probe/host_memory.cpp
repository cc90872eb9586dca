#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <cstdlib>
#include <utility>

#include "calibrate/probe/host_threads.h"
#include "calibrate/probe/host_work.h"
#include "calibrate/probe/host_work_kinds.h"

// Vector instructions of the machine at hand, chosen when the program runs. This file is compiled without math's errno (cmake/ProbeSources.cmake): GCC does not take
// that from an attribute, and then calls sqrtf element by element, which made Adam six times slower.
// Not under sanitizers: they are not ready yet when the loader chooses.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define REHEARSE_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define REHEARSE_VECTORISED
#endif

namespace rehearse::calibrate {
namespace {

/// Memory that no page of which has been touched.
template <typename T>
class Array {
 public:
  explicit Array(std::size_t size) : size_(size), data_(static_cast<T*>(std::aligned_alloc(4096, (size * sizeof(T) + 4095) / 4096 * 4096))) {
    if (data_ == nullptr) throw NotPossible("the host has too little memory");
  }
  Array(Array&& other) noexcept : size_(other.size_), data_(std::exchange(other.data_, nullptr)) {}
  ~Array() { std::free(data_); }
  T* data() { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::size_t size_;
  T* data_;
};

/// The part of n that thread i of `threads` owns: it touches the pages first, so they lie at its own socket.
std::pair<std::size_t, std::size_t> part(std::size_t n, std::size_t i, std::size_t threads) {
  constexpr std::size_t kPage = 4096;
  const std::size_t pages = (n + kPage - 1) / kPage;
  return {std::min(n, pages * i / threads * kPage), std::min(n, pages * (i + 1) / threads * kPage)};
}

REHEARSE_VECTORISED void triad(float* a, const float* b, const float* c, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) a[i] = b[i] + 3.0f * c[i];
}
REHEARSE_VECTORISED void copy(float* a, const float* b, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) a[i] = b[i];
}
REHEARSE_VECTORISED std::uint64_t sum(const std::uint64_t* a, std::size_t n) {
  std::uint64_t s = 0;
  for (std::size_t i = 0; i < n; ++i) s += a[i];
  return s;
}
REHEARSE_VECTORISED void fill(float* a, float value, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) a[i] = value;
}

/// One step of Adam (Kingma & Ba 2015) with decoupled weight decay, and the 16-bit copy that goes back to the GPU.
REHEARSE_VECTORISED void adam(float* p, float* m, float* v, const float* g, std::uint16_t* half, std::size_t n, float correction1,
                              float correction2) {
  constexpr float kRate = 1e-4f, kBeta1 = 0.9f, kBeta2 = 0.95f, kEpsilon = 1e-8f, kDecay = 0.1f;
  for (std::size_t i = 0; i < n; ++i) {
    m[i] = kBeta1 * m[i] + (1 - kBeta1) * g[i];
    v[i] = kBeta2 * v[i] + (1 - kBeta2) * g[i] * g[i];
    const float update = (m[i] * correction1) / (std::sqrt(v[i] * correction2) + kEpsilon);
    p[i] -= kRate * (update + kDecay * p[i]);
    half[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(p[i]) >> 16);
  }
}

class HostMemory final : public Work {
 public:
  HostMemory(const Facts& parameters)
      : kernel_(std::get<std::string>(parameters.at("kernel"))), threads_(static_cast<std::size_t>(std::get<std::int64_t>(parameters.at("threads")))) {
    const std::size_t arrays = kernel_ == "triad" ? 3 : kernel_ == "copy" ? 2 : 1;
    const auto bytes = static_cast<std::size_t>(std::get<std::int64_t>(parameters.at("bytes")));
    for (std::size_t i = 0; i < arrays; ++i) arrays_.emplace_back(bytes / arrays / sizeof(float));
    timed_on_threads(threads_, [&](std::size_t t) {
      const auto [begin, end] = part(arrays_[0].size(), t, threads_);
      for (auto& a : arrays_) fill(a.data() + begin, 1.5f, end - begin);
    });
  }

  double run(std::int64_t count) override {
    return timed_on_threads(threads_, [&](std::size_t t) {
      const auto [begin, end] = part(arrays_[0].size(), t, threads_);
      float* a = arrays_[0].data() + begin;
      const std::size_t n = end - begin;
      for (std::int64_t c = 0; c < count; ++c) {
        if (kernel_ == "triad") triad(a, arrays_[1].data() + begin, arrays_[2].data() + begin, n);
        else if (kernel_ == "copy") copy(a, arrays_[1].data() + begin, n);
        else if (kernel_ == "write") fill(a, static_cast<float>(c), n);
        else sink_ = sum(reinterpret_cast<const std::uint64_t*>(a), n / 2);
      }
    });
  }

 private:
  std::string kernel_;
  std::size_t threads_;
  std::vector<Array<float>> arrays_;
  std::atomic<std::uint64_t> sink_ = 0;
};

class HostAdam final : public Work {
 public:
  HostAdam(const Facts& parameters)
      : threads_(static_cast<std::size_t>(std::get<std::int64_t>(parameters.at("threads")))),
        n_(static_cast<std::size_t>(std::get<std::int64_t>(parameters.at("elements")))), p_(n_), m_(n_), v_(n_), g_(n_), half_(n_) {
    timed_on_threads(threads_, [&](std::size_t t) {
      const auto [begin, end] = part(n_, t, threads_);
      for (std::size_t i = begin; i < end; ++i) {
        p_.data()[i] = 0.02f;
        m_.data()[i] = v_.data()[i] = 0;
        g_.data()[i] = 1e-3f * static_cast<float>(static_cast<int>(i % 7) - 3);
        half_.data()[i] = 0;
      }
    });
  }

  double run(std::int64_t count) override {
    const double seconds = timed_on_threads(threads_, [&](std::size_t t) {
      const auto [begin, end] = part(n_, t, threads_);
      for (std::int64_t c = 1; c <= count; ++c) {
        const auto step = static_cast<double>(step_ + c);
        adam(p_.data() + begin, m_.data() + begin, v_.data() + begin, g_.data() + begin, half_.data() + begin, end - begin,
             static_cast<float>(1 / (1 - std::pow(0.9, step))), static_cast<float>(1 / (1 - std::pow(0.95, step))));
      }
    });
    step_ += count;
    return seconds;
  }

 private:
  std::size_t threads_, n_;
  Array<float> p_, m_, v_, g_;
  Array<std::uint16_t> half_;
  std::int64_t step_ = 0;
};

}  // namespace

std::unique_ptr<Work> prepare_host_memory(const Facts& parameters) { return std::make_unique<HostMemory>(parameters); }
std::unique_ptr<Work> prepare_host_adam(const Facts& parameters) { return std::make_unique<HostAdam>(parameters); }

void adam_step(float* p, float* m, float* v, const float* g, std::uint16_t* half, std::size_t n, int step) {
  adam(p, m, v, g, half, n, static_cast<float>(1 / (1 - std::pow(0.9, step))), static_cast<float>(1 / (1 - std::pow(0.95, step))));
}

}  // namespace rehearse::calibrate
