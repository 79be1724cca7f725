/* Votes of a dialect whose threads have none: what a run of 32 threads has written to local memory is visible to it after a barrier. Others have, in
 * a file of their own, GK_BALLOT, and gk_vote(bits): the threads of the run for which `bits` are 0, as here, or are not, as here. */
#define GK_RUN_BARRIER() GK_BARRIER()

/* Number of bits that are set. */
GK_FN int gk_popcount(gk_u32 v)
{
    v -= v >> 1 & 0x55555555u;
    v = (v & 0x33333333u) + (v >> 2 & 0x33333333u);
    return (int)(((v + (v >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
}
