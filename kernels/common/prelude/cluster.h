/* Stores of 16 bytes to the local memory of other blocks of a cluster. */
#if GK_CLUSTER > 1
/* Stores to the place that p is in the local memory of a block of the cluster. */
GK_FN void gk_cluster_put16(gk_raw16* p, gk_raw16 v, int block)
{
    gk_u32 at = (gk_u32)__cvta_generic_to_shared(p);
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;\n\tst.shared::cluster.v4.b32 [%0], {%2, %3, %4, %5};" : "+r"(at) : "r"(block), "r"(v.x), "r"(v.y),
        "r"(v.z), "r"(v.w) : "memory");
}
#else
#define gk_cluster_put16(p, v, block) (*(p) = (v))
#endif
