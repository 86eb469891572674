"""The noise that a guarantee needs: accountants, amplification, the plan and its statement."""
