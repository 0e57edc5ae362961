"""Wrong plugins and legal variants, one module a kind: they prove the suite."""
