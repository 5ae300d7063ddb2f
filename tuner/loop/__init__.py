"""The tuning loop: proposals ahead, one trial measured and verified, rounds, finals, statistics."""
