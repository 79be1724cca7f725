/* The way of prelude/matrix.h to products that the dialect has. A dialect with one more has a file of this name, which asks for it first. */
#ifdef GK_PTX
#include "common/prelude/matrix_ptx.h"
#elif defined(GK_MFMA)
#include "common/prelude/matrix_mfma.h"
#else
#include "common/prelude/matrix_portable.h"
#endif
