"""Methods of publications beside those that recipes use: estimators, losses, corrections and presets of them."""
