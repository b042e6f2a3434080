"""How ranks reach each other."""
