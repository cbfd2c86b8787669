"""All feature graphs: small modules that each show one thing the reader of archives must know."""

import feature_operators
import feature_regions
import feature_sizes
import feature_state
import feature_trees
import feature_weights
from entry import Registry

FEATURES = Registry()
for part in (feature_operators, feature_state, feature_regions, feature_sizes, feature_trees, feature_weights):
    for name, entry in part.FEATURES.items():
        assert name not in FEATURES, name
        FEATURES[name] = entry
