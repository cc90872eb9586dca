// A shared library that is looked for when the program runs, so that the probe starts, and says what is missing, on
// machines without it. Leaves out which functions are wanted.
#pragma once

#include <dlfcn.h>

#include <initializer_list>
#include <string>

#include "calibrate/probe/device.h"

namespace rehearse::calibrate {

class Library {
 public:
  /// The first of `names` that the loader finds (LD_LIBRARY_PATH, the run path, the system's folders).
  Library(const std::string& what, std::initializer_list<const char*> names) : what_(what) {
    for (const char* name : names) {
      handle_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) return;
      if (const char* error = ::dlerror(); error != nullptr && why_.empty()) why_ = error;
    }
  }
  bool there() const { return handle_ != nullptr; }
  void must_be_there() const {
    if (!there()) throw NotPossible(what_ + " could not be loaded (" + why_ + "); put its folder into LD_LIBRARY_PATH");
  }
  template <typename Function>
  void find(Function& function, const char* name, bool must = true) const {
    must_be_there();
    function = reinterpret_cast<Function>(::dlsym(handle_, name));
    if (function == nullptr && must) throw NotPossible(what_ + " has no " + name + ": it is too old");
  }

 private:
  std::string what_, why_;
  void* handle_ = nullptr;
};

}  // namespace rehearse::calibrate
