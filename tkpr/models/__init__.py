"""Models that timm does not have."""
