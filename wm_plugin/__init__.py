"""World-model objectives, rewards, data, environments and evaluation for TRL and verl, without forking them."""
