from wm_plugin.recipes import page

print(page(), end="")
