#include <algorithm>
#include <cmath>

#include "calibrate/probe/cases.h"

namespace rehearse::calibrate {
namespace {

using Int = std::int64_t;

struct Linear {
  const char* origin;
  Int in, out;
};
// Linear layers of public models, as one GPU sees them. Sources: the models' config.json; tensor-parallel splits as Megatron does.
constexpr Linear kLinears[] = {
    {"llama-3-8b qkv", 4096, 6144},          {"llama-3-8b attention out", 4096, 4096},
    {"llama-3-8b gate and up", 4096, 28672}, {"llama-3-8b down", 14336, 4096},
    {"llama-3-8b head", 4096, 128256},
    {"gpt2 qkv", 768, 2304},                 {"gpt2 attention out", 768, 768},
    {"gpt2 fc1", 768, 3072},                 {"gpt2 fc2", 3072, 768},
    {"gpt2 head", 768, 50304},
    {"gpt2-xl qkv", 1600, 4800},             {"gpt2-xl fc1", 1600, 6400},
    {"gpt2-xl fc2", 6400, 1600},
    {"llama-3-70b tp8 qkv", 8192, 1280},     {"llama-3-70b tp8 attention out", 1024, 8192},
    {"llama-3-70b tp8 gate and up", 8192, 7168}, {"llama-3-70b tp8 down", 3584, 8192},
    {"mixtral-8x7b expert gate and up", 4096, 28672}, {"deepseek-v3 expert gate and up", 7168, 4096},
    {"deepseek-v3 expert down", 2048, 7168},
};

constexpr const char* kGemmRoles[] = {"forward", "data_gradient", "weight_gradient"};

struct Shape {
  Int m, n, k;
};
Shape shape_of(const Linear& l, Int tokens, int role) {
  if (role == 0) return {tokens, l.out, l.in};
  if (role == 1) return {tokens, l.in, l.out};
  return {l.out, l.in, tokens};
}

Case gemm(const Shape& s, const std::string& dtype, int role, const std::string& origin, int tier, Int batch = 1) {
  Case out{"gemm", {{"m", s.m}, {"n", s.n}, {"k", s.k}, {"dtype", dtype}, {"role", std::string(kGemmRoles[role])}, {"origin", origin}}, tier};
  if (batch > 1) out.parameters["batch"] = batch;
  if (dtype == "fp8") out.parameters["output_dtype"] = std::string("bf16");
  return out;
}

/// Rounded to the multiple that keeps tensor cores busy; log-uniform between the bounds.
Int between(double u, Int low, Int high, Int multiple) {
  const double v = static_cast<double>(low) * std::pow(static_cast<double>(high) / static_cast<double>(low), u);
  return std::max<Int>(multiple, multiple * static_cast<Int>(std::llround(v / static_cast<double>(multiple))));
}

Int bytes_of(const std::string& dtype) { return dtype == "fp8" ? 1 : dtype == "fp32" || dtype == "tf32" ? 4 : 2; }

bool fits(const Case& c, const MachineShape& machine) {
  const auto whole = [&](const char* key) { return static_cast<double>(std::get<Int>(c.parameters.at(key))); };
  const double e = static_cast<double>(bytes_of(std::get<std::string>(c.parameters.at("dtype"))));
  const double batch = c.parameters.contains("batch") ? whole("batch") : 1;
  const double bytes = batch * (e * (whole("m") * whole("k") + whole("k") * whole("n")) + std::max(e, 2.0) * whole("m") * whole("n"));
  return bytes < 0.6 * static_cast<double>(machine.gpu_bytes);
}

}  // namespace

double halton(std::int64_t index, int base) {
  double out = 0, weight = 1;
  for (; index > 0; index /= base) {
    weight /= base;
    out += weight * static_cast<double>(index % base);
  }
  return out;
}

std::vector<Case> gemm_cases(const MachineShape& machine) {
  std::vector<Case> out;
  const bool has_fp8 = machine.compute_capability >= 89, has_bf16 = machine.compute_capability >= 80;
  const std::string main_type = has_bf16 ? "bf16" : "fp16";

  // Layers of real models, all three roles.
  for (const Int tokens : {Int{8192}, Int{4096}, Int{2048}, Int{16384}})
    for (std::size_t i = 0; i < std::size(kLinears); ++i)
      for (int role = 0; role < 3; ++role) {
        const int tier = tokens == 8192 && i < 10 ? 0 : tokens >= 4096 && tokens <= 8192 ? 1 : 2;
        out.push_back(gemm(shape_of(kLinears[i], tokens, role), main_type, role, kLinears[i].origin, tier));
      }
  // Those that run beside communication too (overlap_cases), alone.
  for (const Shape& s : {Shape{8192, 8192, 8192}, Shape{4096, 4096, 4096}}) out.push_back(gemm(s, main_type, 0, "beside communication", s.m == 8192 ? 0 : 1));
  // Megatron adds a weight gradient to an fp32 buffer inside the GEMM.
  for (std::size_t i = 0; i < 4; ++i) {
    Case c = gemm(shape_of(kLinears[i], 8192, 2), main_type, 2, kLinears[i].origin, 1);
    c.parameters["accumulate"] = true;
    c.parameters["output_dtype"] = std::string("fp32");
    out.push_back(c);
  }

  // A grid that fills the space of sizes evenly at any length, so that a run that is cut off still covers it.
  constexpr Int kMost = 400;
  for (Int i = 1; i <= kMost; ++i) {
    const Shape s = {between(halton(i, 2), 64, 32768, 64), between(halton(i, 3), 128, 32768, 64), between(halton(i, 5), 64, 32768, 64)};
    if (2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k) > 2e13) continue;
    const int tier = i <= 40 ? 0 : i <= 160 ? 1 : 2;
    out.push_back(gemm(s, main_type, static_cast<int>(i % 3), "grid", tier));
  }
  // Sizes that are no multiple of the tiles, or odd.
  for (Int i = 1; i <= 24; ++i) {
    const Shape s = {between(halton(i, 2), 100, 16384, i % 2 == 0 ? 8 : 1), between(halton(i, 3), 100, 16384, i % 2 == 0 ? 8 : 1),
                     between(halton(i, 5), 100, 16384, i % 2 == 0 ? 8 : 1)};
    out.push_back(gemm(s, main_type, 0, "grid unaligned", i <= 6 ? 0 : 1));
  }
  // Other number formats on the same grid.
  struct Format { const char* dtype; Int quick, usual, all; bool there; };
  const Format formats[] = {{"fp8", 16, 60, 150, has_fp8}, {"fp16", 6, 24, 60, has_bf16}, {"tf32", 6, 20, 60, has_bf16}, {"fp32", 3, 12, 40, true}};
  for (const Format& f : formats) {
    if (!f.there) continue;
    // Without large ones in it, a fit to a quick run would carry the small ones' speed on to them.
    for (std::size_t i = 0; i < 2; ++i)
      for (int role = 0; role < 3; ++role) out.push_back(gemm(shape_of(kLinears[i], 4096, role), f.dtype, role, kLinears[i].origin, 0));
    for (Int i = 1; i <= f.all; ++i) {
      const Int largest = std::string(f.dtype) == "fp32" ? 8192 : 32768;
      const Shape s = {between(halton(i, 2), 64, largest, 64), between(halton(i, 3), 128, largest, 64), between(halton(i, 5), 64, largest, 64)};
      if (2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k) > 2e13) continue;
      out.push_back(gemm(s, f.dtype, static_cast<int>(i % 3), "grid", i <= f.quick ? 0 : i <= f.usual ? 1 : 2));
    }
  }
  // Batched: scores of unfused attention, forward and back.
  for (const Int length : {Int{512}, Int{1024}, Int{2048}, Int{4096}})
    for (const Int head : {Int{64}, Int{128}}) {
      const Int batch = 32 * 4096 / length;
      out.push_back(gemm({length, length, head}, main_type, 0, "attention scores", length == 2048 ? 0 : 1, batch));
      out.push_back(gemm({length, head, length}, main_type, 1, "attention values", length == 2048 ? 0 : 1, batch));
    }
  // Experts.
  for (const Int experts : {Int{8}, Int{32}})
    for (const Int tokens : {Int{128}, Int{512}, Int{2048}})
      for (int role = 0; role < 3; ++role) {
        const Shape s = shape_of({"", 4096, 14336}, tokens, role);
        out.push_back({"grouped_gemm", {{"m", s.m}, {"n", s.n}, {"k", s.k}, {"dtype", main_type}, {"groups", experts},
                                        {"role", std::string(kGemmRoles[role])}}, experts == 8 && role == 0 ? 0 : 1});
      }
  std::erase_if(out, [&](const Case& c) { return c.operation == "gemm" && !fits(c, machine); });
  std::erase_if(out, [&](const Case& c) {
    return c.operation == "grouped_gemm" && machine.gpu_bytes < (std::int64_t{16} << 30) && std::get<Int>(c.parameters.at("groups")) > 8;
  });
  return out;
}

}  // namespace rehearse::calibrate
