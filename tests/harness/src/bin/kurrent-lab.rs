//! x
fn main() -> anyhow::Result<()> {
    let p = kurrent_harness::master::ensure_built(&mut |l| println!("{l}"))?;
    println!("{}", p.display());
    Ok(())
}
