/* Votes among runs of 32 neighbouring threads: a warp, or half of a wavefront of 64 lanes. For the whole block, in uniform control flow. */
#include "dialect/prelude/ballot.h"

/* The threads of the run whose digit, below 2^bits, is this thread's: bit i is set for thread i. tmp is a GK_LOCAL array of GK_BLOCK gk_u32. */
GK_FN gk_u32 gk_peers(gk_u32 digit, const int bits, GK_LOCAL_PTR gk_u32* tmp)
{
#ifdef GK_BALLOT
    gk_u32 peers = 0xffffffffu;
    GK_UNROLL for (int b = 0; b < bits; b++) peers &= gk_vote(digit & 1u << b);
#else
    int first = gk_lid() / 32 * 32;
    gk_u32 peers = 0u;
    tmp[gk_lid()] = digit;
    GK_BARRIER();
    for (int i = 0; i < 32; i++) peers |= (gk_u32)(tmp[first + i] == digit) << i;
    GK_BARRIER();
#endif
    return peers;
}
