"""What is learnt: tasks, the networks that learn them, and recurrent layers made of linear ones."""
