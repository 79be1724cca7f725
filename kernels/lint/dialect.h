/* Lint dialect: plain C99, only to be compiled, never run. The 16-bit storage types are structs, so that arithmetic on storage is an error. */
#define GK_LINT 1
typedef unsigned char gk_u8;
typedef unsigned short gk_u16;
typedef unsigned int gk_u32;
typedef long long gk_i64;
typedef unsigned long long gk_u64;
typedef struct { gk_u32 x, y, z, w; } gk_raw16;

#define GK_KERNEL(name) void name
#define GK_FN static inline
/* For long functions: called, not expanded at every use, so that units compile quickly. */
#define GK_FN_CALL static
#define GK_GLOBAL
#define GK_LOCAL static
#define GK_LOCAL_DYNAMIC(T, name, count) static T name[count]
#define GK_LOCAL_PTR
#define GK_CONST static const
#define GK_IN(T, p) const T* restrict p
#define GK_OUT(T, p) T* restrict p
#define GK_BIND_IN(T, p)
#define GK_BIND_OUT(T, p)
#define GK_BY_VALUE(T, name) const T name
#define GK_BARRIER() ((void)0)
#define GK_UNROLL
#define GK_ROLLED

int gk_lint_id(int);
#define gk_lid() gk_lint_id(0)
#define gk_bid(d) gk_lint_id(1 + (d))
#define gk_nblocks(d) gk_lint_id(4 + (d))

#define GK_M32(name) name##f
#define GK_M64(name) name
float exp10f(float);
double exp10(double);
float rsqrtf(float);
double rsqrt(double);

float gk_as_f32(gk_u32 x);
gk_u32 gk_as_u32(float x);
double gk_as_f64(gk_u64 x);
gk_u64 gk_as_u64(double x);
gk_u32 gk_mulhi(gk_u32 a, gk_u32 b);
float gk_f16_to_f32(gk_u16 h);
gk_u16 gk_f32_to_f16(float f);
gk_raw16 gk_load16(const void* p);
void gk_store16(void* p, gk_raw16 v);
gk_raw16 gk_make16(gk_u32 x, gk_u32 y, gk_u32 z, gk_u32 w);
void gk_local_add(gk_u32* p, gk_u32 v);
