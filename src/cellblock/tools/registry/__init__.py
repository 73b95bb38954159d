"""What is known of tools from one run to the next: registered servers, and permissions that stay."""
