"""Tools that a model's turn may call, and the sandbox that runs them in processes of their own."""
