// Two results of one scenario that must not differ in a bit.
#pragma once

#include <gtest/gtest.h>

#include "sim/scenario/simulate.h"

namespace rehearse::test_support {

inline void expect_same(const scenario::Result& a, const scenario::Result& b) {
  EXPECT_EQ(a.fits, b.fits);
  EXPECT_EQ(a.step_time, b.step_time);
  EXPECT_EQ(a.instructions, b.instructions);
  EXPECT_EQ(a.deadlock, b.deadlock);
  EXPECT_EQ(a.critical_class, b.critical_class);
  EXPECT_EQ(a.fullest_class, b.fullest_class);
  ASSERT_EQ(a.classes.size(), b.classes.size());
  for (std::size_t c = 0; c < a.classes.size(); ++c) {
    SCOPED_TRACE(a.classes[c].name);
    const executor::ClassTiming &t = a.classes[c].timing, &u = b.classes[c].timing;
    EXPECT_EQ(t.step, u.step);
    EXPECT_EQ(t.time, u.time);
    EXPECT_EQ(t.busy, u.busy);
    EXPECT_EQ(t.call_host, u.call_host);
    const executor::ClassMemory &m = a.classes[c].memory, &n = b.classes[c].memory;
    EXPECT_EQ(m.peak_allocated, n.peak_allocated);
    EXPECT_EQ(m.peak_reserved, n.peak_reserved);
    EXPECT_EQ(m.end_allocated, n.end_allocated);
    EXPECT_EQ(m.end_reserved, n.end_reserved);
    EXPECT_EQ(m.at_peak, n.at_peak);
    EXPECT_EQ(m.peak_step, n.peak_step);
    EXPECT_EQ(m.peak_call, n.peak_call);
    EXPECT_EQ(m.operations, n.operations);
    EXPECT_EQ(m.out_of_memory.has_value(), n.out_of_memory.has_value());
    EXPECT_EQ(m.failed_call, n.failed_call);
    EXPECT_EQ(m.failed_step, n.failed_step);
  }
}

}  // namespace rehearse::test_support
