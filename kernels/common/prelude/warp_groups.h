/* Groups of four warps of a block do different work: some copy, the others multiply.
 *
 *   gk_uniform(x)                  x, which all lanes of the warp have, as the compiler can know it
 *   GK_REGISTERS_LESS(n), _MORE    the group's threads have n registers from here on
 *   gk_gate_init(gate, n)          a gate, 8 bytes of local memory, that opens each time n threads have arrived; before a barrier
 *   gk_gate_arrive(gate)           once, after this thread's copies are done (GK_COPY_WAIT) or its products are (GK_MM_WAIT)
 *   gk_gate_pass(gate, turn)       waits until the gate has opened for its turn 0, 1, 2, ...: `turn` modulo 2
 *   GK_GATES_READY()               after the last gk_gate_init
 *   gk_load16_here(p, exists)      16 bytes of global memory, zeros if they do not exist: the compiler does not move this load across barriers
 *   GK_PAIR_WAIT(n), GK_PAIR_GO(n) a wait of a group for another group's go, number n = 1 ... 15; where two groups wait, a barrier of both
 *
 * For sm_90a (GK_PTX 90); GK_WARP_GROUPS is defined here.
 */
#define GK_WARP_GROUPS 1
GK_FN gk_u32 gk_uniform(gk_u32 x)
{
    gk_u32 r;
    asm volatile("shfl.sync.idx.b32 %0, %1, 0, 31, -1;" : "=r"(r) : "r"(x));
    return r;
}
#define GK_REGISTERS_LESS(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 " #n ";")
#define GK_REGISTERS_MORE(n) asm volatile("setmaxnreg.inc.sync.aligned.u32 " #n ";")
GK_FN void gk_gate_init(gk_u32 gate, int n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(gate), "r"(n) : "memory"); }
GK_FN void gk_gate_arrive(gk_u32 gate)
{
    asm volatile("{\n\t.reg .b64 s;\n\tmbarrier.arrive.shared::cta.b64 s, [%0];\n\t}" : : "r"(gate) : "memory");
}
GK_FN void gk_gate_pass(gk_u32 gate, gk_u32 turn)
{
    asm volatile("{\n\t.reg .pred p;\nAGAIN:\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t@p bra PASSED;\n\tbra AGAIN;\nPASSED:\n\t}"
                 : : "r"(gate), "r"(turn & 1u) : "memory");
}
#define GK_GATES_READY() asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory")
/* gk_copy16_to of what exists. */
GK_FN void gk_copy16_whole(gk_u32 to, GK_GLOBAL const void* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
}
GK_FN gk_raw16 gk_load16_here(GK_GLOBAL const void* p, int exists)
{
    gk_raw16 r;
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %5, 0;\n\tmov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\tmov.b32 %2, 0;\n\tmov.b32 %3, 0;\n\t"
                 "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n\t}"
                 : "=&r"(r.x), "=&r"(r.y), "=&r"(r.z), "=&r"(r.w) : "l"(p), "r"(exists) : "memory");
    return r;
}
#define GK_PAIR_WAIT(n) asm volatile("bar.sync %0, 256;" : : "r"(n) : "memory")
#define GK_PAIR_GO(n) asm volatile("bar.arrive %0, 256;" : : "r"(n) : "memory")
