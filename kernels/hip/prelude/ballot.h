/* common/prelude/ballot.h by warps, or halves of wavefronts of 64 lanes. */
#define GK_BALLOT 1
GK_FN int gk_popcount(gk_u32 v) { return __popc(v); }
#if defined(__HIP_PLATFORM_NVIDIA__) || defined(__CUDACC_RTC__)
#define GK_RUN_BARRIER() __syncwarp()
GK_FN gk_u32 gk_vote(gk_u32 bits)
{
    gk_u32 r;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; @!p not.b32 %0, %0; }" : "=r"(r) : "r"(bits));
    return r;
}
#else
#define GK_RUN_BARRIER() \
    do { \
        __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront"); \
        __builtin_amdgcn_wave_barrier(); \
        __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront"); \
    } while (0)
GK_FN gk_u32 gk_vote(gk_u32 bits)
{
    gk_u32 lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
    gk_u32 with = (gk_u32)(__ballot(bits != 0u) >> (lane & 32u));
    return bits ? with : ~with;
}
#endif
