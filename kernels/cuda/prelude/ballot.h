/* common/prelude/ballot.h by warps. */
#define GK_BALLOT 1
#define GK_RUN_BARRIER() __syncwarp()
GK_FN int gk_popcount(gk_u32 v) { return __popc(v); }
GK_FN gk_u32 gk_vote(gk_u32 bits)
{
    gk_u32 r;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; @!p not.b32 %0, %0; }" : "=r"(r) : "r"(bits));
    return r;
}
