"""The losses of the TKPR paper and of its competitors."""
