/* common/prelude/matrix_cores.h, and WMMA. */
#ifdef GK_WMMA
#include "common/prelude/matrix_wmma.h"
#else
#include "common/prelude/matrix_cores.h"
#endif
