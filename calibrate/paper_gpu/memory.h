// Memory of the GPU on paper: addresses without memory behind them until somebody writes, and what is taken of how much there is.
#pragma once

#include <cstddef>

namespace rehearse::paper_gpu {

enum class Place { nowhere, device, host };

/// An address of `bytes` bytes, or nullptr where the device has no room (host memory is not counted). Thread-safe.
void* take(std::size_t bytes, Place place);
/// Gives an address of take() back. False: it is none.
bool give_back(void* address);
/// Where an address lies.
Place place_of(const void* address);
std::size_t device_total();
std::size_t device_used();
/// Physical memory without addresses (the driver's cuMemCreate). False: no room.
bool take_physical(std::size_t bytes);
void give_physical_back(std::size_t bytes);
/// Copies where both sides may be written: small ones only, since weights would take the host's memory. What kernels should have
/// written is not there: the host reads zeros, or what a copy left at that address.
void carry(void* to, const void* from, std::size_t bytes);

}  // namespace rehearse::paper_gpu
