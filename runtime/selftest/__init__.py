"""What every way of running an all-reduce must do, checked on the user's own machine."""
