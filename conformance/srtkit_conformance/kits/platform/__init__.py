"""What the checks of platforms share: facts without torch (facts.py), and the platform under test (rig.py)."""
