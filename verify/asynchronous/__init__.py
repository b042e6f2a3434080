"""Programs without rounds: thread blocks that send, receive, signal and wait at their own pace."""
