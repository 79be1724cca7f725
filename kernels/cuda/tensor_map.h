/* Copies of boxes of a tensor to local memory by the tensor memory accelerator (TMA) of sm_90a, to one block or to all of a cluster. Beside
 * common/prelude/matrix.h, for 16-bit types in the CUDA dialect, whose driver makes the maps; elsewhere GK_TENSOR_MAPS is not defined.
 *
 *   GK_TENSOR_MAP(name)                  a parameter: map of a tensor of three axes, innermost first, in boxes of 64 x 64 x 1 numbers
 *   gk_box_copy(to, map, x, y, z, gate)  queues the copy of the box that begins at (x, y, z); zeros stand for what lies outside the tensor. Rows have
 *                                        128 bytes, their chunks in the order of gk_chunk_at; `to`, a local address, is a multiple of 1 KiB
 *   gk_box_share(..., blocks)            the same to all blocks of the cluster that have a bit in `blocks`, to the same place and gate in each
 *   gk_gate_expect(gate, bytes)          arrives at a gate that opens when so many bytes of boxes have come, too
 *   gk_gate_arrive_at(gate, block)       arrives at a gate of a block of the cluster
 *   gk_block_of_cluster()                the number of this block in its cluster
 *   GK_WARP_BARRIER(), GK_GROUP_BARRIER(n)   a barrier of the warp's threads, and number n of a group of four warps
 */
#if defined(GK_CUDA) && defined(GK_WARP_GROUPS)
#define GK_TENSOR_MAPS 1
/* Clusters of two blocks. */
#define GK_IN_PAIRS_OF_BLOCKS __cluster_dims__(2, 1, 1)
typedef struct { gk_u64 words[16]; } __attribute__((aligned(64))) gk_tensor_map;
#define GK_TENSOR_MAP(name) const __grid_constant__ gk_tensor_map name

GK_FN void gk_box_copy(gk_u32 to, const gk_tensor_map* map, int x, int y, int z, gk_u32 gate)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                 : : "r"(to), "l"(map), "r"(gate), "r"(x), "r"(y), "r"(z) : "memory");
}
GK_FN void gk_box_share(gk_u32 to, const gk_tensor_map* map, int x, int y, int z, gk_u32 gate, int blocks)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;"
                 : : "r"(to), "l"(map), "r"(gate), "r"(x), "r"(y), "r"(z), "h"((gk_u16)blocks) : "memory");
}
GK_FN void gk_gate_expect(gk_u32 gate, gk_u32 bytes)
{
    asm volatile("{\n\t.reg .b64 s;\n\tmbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1;\n\t}" : : "r"(gate), "r"(bytes) : "memory");
}
/* Without a release at the cluster's scope, which halves the speed of products (measured): what the gate guards are reads by wgmma, which are complete. */
GK_FN void gk_gate_arrive_at(gk_u32 gate, gk_u32 block)
{
    asm volatile("{\n\t.reg .b32 g;\n\tmapa.shared::cluster.u32 g, %0, %1;\n\tmbarrier.arrive.shared::cluster.b64 _, [g];\n\t}"
                 : : "r"(gate), "r"(block) : "memory");
}
GK_FN gk_u32 gk_block_of_cluster(void)
{
    gk_u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
#define GK_WARP_BARRIER() asm volatile("bar.warp.sync -1;" : : : "memory")
#define GK_GROUP_BARRIER(n) asm volatile("bar.sync %0, 128;" : : "r"(n) : "memory")
#endif
