import sys

import georesolve
from georesolve import Options

shops, depots, out = sys.argv[1:]
options = Options(k=3, max_distance_m=50_000, columns=("name",))
georesolve.resolve(shops, depots, out, options)
