/* Copies and products of prelude/matrix.h where neither goes on while the thread does: there is nothing to wait for. */
GK_FN void gk_copy16(GK_LOCAL_PTR gk_raw16* to, GK_GLOBAL const void* from, int exists)
{
    *to = exists ? gk_load16(from) : gk_make16(0u, 0u, 0u, 0u);
}
GK_FN void gk_copy4(GK_LOCAL_PTR float* to, GK_GLOBAL const float* from, int exists) { *to = exists ? *from : 0.0f; }
#define GK_COPY_COMMIT() ((void)0)
#define GK_COPY_WAIT(n) ((void)0)
#define GK_MM_WAIT(n) ((void)0)
#define gk_mm_ready(c, n) ((void)0)
