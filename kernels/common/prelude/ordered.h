/* Blocks that add to the same floats one after another, in an order that they know, so that sums repeat bit by bit. A block waits only for blocks with
 * smaller numbers, and takes numbers in rising order when it runs: those that it waits for run or have ended.
 *
 *   gk_take_number(count)          the next number: 0, 1, 2, ... count, in global memory, is 0 before the launch. One thread
 *   gk_turn_wait(turns, n)         waits until gk_turn_end was called n times for these turns, in global memory and 0 before the launch
 *   GK_LOCAL_WRITTEN()             what the warp wrote to local memory is seen by bulk copies and wgmma behind a gate at which one lane arrives, or a barrier
 *   gk_bulk_add(to, from, n, first)    queues that n floats, a multiple of 4, are added to global memory from local memory; first: stored
 *   GK_BULK_READ(), GK_BULK_DONE() waits until what this thread queued is read; is added
 *   gk_turn_end(turns)             what this thread has added comes before what those add who wait for this
 *   gk_turn_written(turns)         the same of what was stored by this thread and, before a barrier, by others of its block, where nothing was queued
 *
 * GK_ORDERED_BLOCKS is defined where the dialect has them (sm_90a).
 */
#if defined(GK_PTX) && GK_PTX >= 90
#define GK_ORDERED_BLOCKS 1
GK_FN gk_u32 gk_take_number(GK_GLOBAL gk_u32* count)
{
    gk_u32 n;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(n) : "l"(count) : "memory");
    return n;
}
GK_FN void gk_turn_wait(GK_GLOBAL const gk_u32* turns, gk_u32 n)
{
    gk_u32 ended = n - 1u;
    while ((int)(ended - n) < 0) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(ended) : "l"(turns) : "memory");
}
GK_FN void gk_turn_end(GK_GLOBAL gk_u32* turns)
{
    asm volatile("fence.proxy.async.global;\n\tfence.acq_rel.gpu;\n\tred.relaxed.gpu.global.add.u32 [%0], 1;" : : "l"(turns) : "memory");
}
GK_FN void gk_turn_written(GK_GLOBAL gk_u32* turns) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" : : "l"(turns) : "memory"); }
#define GK_LOCAL_WRITTEN() asm volatile("fence.proxy.async.shared::cta;\n\tbar.warp.sync -1;" : : : "memory")
GK_FN void gk_bulk_add(GK_GLOBAL float* to, gk_u32 from, int n, int first)
{
    asm volatile("fence.proxy.async.global;" : : : "memory");
    if (first) asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" : : "l"(to), "r"(from), "r"(n * 4) : "memory");
    else asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" : : "l"(to), "r"(from), "r"(n * 4) : "memory");
    asm volatile("cp.async.bulk.commit_group;" : : : "memory");
}
#define GK_BULK_READ() asm volatile("cp.async.bulk.wait_group.read 0;" : : : "memory")
#define GK_BULK_DONE() asm volatile("cp.async.bulk.wait_group 0;" : : : "memory")
#endif
