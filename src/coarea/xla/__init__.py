"""How programs are compiled, and every hint that XLA gets beyond plain `jax.jit`."""

from coarea.xla.fusion import fuse_cpu as fuse_cpu
from coarea.xla.jaxprs import equations as equations
from coarea.xla.jaxprs import inner_jaxprs as inner_jaxprs
from coarea.xla.lapack import calls_lapack as calls_lapack
from coarea.xla.lapack import one_blas_thread as one_blas_thread
from coarea.xla.lapack import sequential_vmap_on_cpu as sequential_vmap_on_cpu
from coarea.xla.materialize import materialize as materialize
from coarea.xla.options import hints_enabled as hints_enabled
from coarea.xla.platforms import on_cpu as on_cpu
from coarea.xla.programs import jit_bounded as jit_bounded
from coarea.xla.programs import jit_fast_compile as jit_fast_compile
