"""How processes of a run come up and go down."""
