// Values that are made once per process and then shared by all threads: what the program's own data files say.
// Leaves out anything that can change while the program runs (a user's files), and forgetting.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

namespace rehearse {

/// A table that fills itself. The values are constant, so who asks first and how often changes no result.
template <typename Key, typename T>
class Remembered {
 public:
  /// The value of `key`, from `make()` the first time; a make() that throws leaves nothing behind. The reference stays
  /// valid as long as the table. Two threads that ask first may both make it; one of the equal values is kept.
  template <typename Make>
  const T& get(const Key& key, Make make) {
    {
      const std::shared_lock reading(mutex_);
      if (const auto it = values_.find(key); it != values_.end()) return *it->second;
    }
    auto made = std::make_unique<const T>(make());
    const std::unique_lock writing(mutex_);
    return *values_.try_emplace(key, std::move(made)).first->second;
  }

 private:
  std::shared_mutex mutex_;
  std::map<Key, std::unique_ptr<const T>> values_;
};

}  // namespace rehearse
