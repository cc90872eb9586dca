#include "sim/scenario/memory_waits.h"

#include <utility>

#include "sim/core/contract.h"
#include "sim/plan/builder.h"

namespace rehearse::scenario {

void wait_for_memory(plan::Plan& plan, std::size_t rank_class, const std::vector<executor::TakenAgain>& taken, BytesPerSecond rate) {
  EXPECTS(rate.value > 0);
  for (const executor::TakenAgain& t : taken) {
    plan::Call& call = plan.classes[rank_class].program.step[t.call];
    plan::BlockWriter waits("waits for memory");
    if (t.gave_back) waits.host_sync();
    waits.host(t.bytes / rate);
    std::vector<plan::Instruction> timing = waits.take().timing;
    plan::Block block = plan.blocks[call.block];
    timing.insert(timing.end(), block.timing.begin(), block.timing.end());
    block.timing = std::move(timing);
    block.name += ", waits for memory";
    call.block = static_cast<std::uint32_t>(plan.blocks.size());
    plan.blocks.push_back(std::move(block));
  }
}

}  // namespace rehearse::scenario
