"""A guard outside of the interpreter: a small process that takes the voltage away when the program is held up or dies."""
