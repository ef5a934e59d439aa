"""The style sheet of the report: one column, figures on white, verdicts in colour and in words."""

from typing import Final

STYLE: Final = """
:root { --ink:#1f2933; --soft:#5b6773; --line:#d9dfe5; --paper:#fbfaf7; --card:#ffffff;
  --yes:#0f6b3c; --yes-bg:#def3e6; --no:#9c1c1c; --no-bg:#fbe3e1; --part:#7a5200;
  --part-bg:#fcefcc; --link:#1d4f91; }
* { box-sizing:border-box; }
body { margin:0; background:var(--paper); color:var(--ink); line-height:1.55;
  font:17px/1.55 Georgia, "Times New Roman", serif; }
header, main, footer { max-width:62rem; margin:0 auto; padding:0 1.5rem; }
header { padding-top:3rem; }
h1 { font-size:2.5rem; line-height:1.15; margin:0 0 .6rem; }
h2 { font-size:1.75rem; line-height:1.2; margin:0 0 .8rem; }
h3 { font:600 .82rem/1.4 system-ui, sans-serif; letter-spacing:.06em; text-transform:uppercase;
  color:var(--soft); margin:1.8rem 0 .4rem; }
.lead, .question { font-size:1.15rem; max-width:46rem; }
.question { font-style:italic; }
p { max-width:46rem; }
section { border-top:1px solid var(--line); margin-top:3.2rem; padding-top:2rem; }
.number { display:block; font:600 .82rem/1.4 system-ui, sans-serif; letter-spacing:.06em;
  text-transform:uppercase; color:var(--soft); }
figure { margin:1.4rem 0; padding:1rem; background:var(--card); border:1px solid var(--line);
  border-radius:8px; }
figure.half { display:inline-block; width:49%; margin-right:.4%; vertical-align:top; }
figure img { display:block; width:100%; height:auto; }
figcaption { font:.88rem/1.45 system-ui, sans-serif; color:var(--soft); margin-top:.6rem; }
table { border-collapse:collapse; width:100%; font:.9rem/1.45 system-ui, sans-serif;
  background:var(--card); border:1px solid var(--line); }
th, td { text-align:left; vertical-align:top; padding:.5rem .7rem;
  border-bottom:1px solid var(--line); }
thead th { color:var(--soft); font-weight:600; background:#f3f1ec; }
.claims td:nth-child(1) { width:9.5rem; } .claims td:nth-child(2) { width:15rem; }
.claims td:nth-child(4) { width:9rem; }
.claims tr:target { outline:3px solid var(--link); outline-offset:-3px; }
.variant, .interval { display:block; color:var(--soft); font-size:.84rem; margin-top:.2rem; }
.chip { display:inline-block; padding:.12rem .55rem; border-radius:1rem; white-space:nowrap;
  font:600 .84rem/1.5 system-ui, sans-serif; }
.chip.yes { color:var(--yes); background:var(--yes-bg); }
.chip.no { color:var(--no); background:var(--no-bg); }
.chip.part { color:var(--part); background:var(--part-bg); }
.yes-text { color:var(--yes); } .no-text { color:var(--no); }
.summary th { width:21rem; font-weight:600; } .chips a { text-decoration:none; }
.chips a { display:inline-block; margin:.1rem .1rem .1rem 0; }
a { color:var(--link); }
dl { max-width:50rem; margin:.6rem 0; } dt { font:600 .92rem/1.4 system-ui, sans-serif;
  margin-top:.8rem; } dt span { font-weight:500; }
dd { margin:.15rem 0 0; }
.more { margin:1rem 0 1.4rem; } .more td + td, .more th + th { text-align:right; }
caption { text-align:left; padding:.2rem 0 .5rem; color:var(--soft); }
footer { border-top:1px solid var(--line); margin-top:3.5rem; padding-top:1.5rem;
  padding-bottom:4rem; }
.facts { width:auto; }
@media (max-width:46rem) {
  body { font-size:16px; } h1 { font-size:1.9rem; }
  .claims thead { display:none; }
  .claims td { display:block; width:auto !important; border-bottom:0; padding:.25rem .7rem; }
  .claims tr { display:block; border-bottom:1px solid var(--line); padding:.4rem 0; }
  .more { display:block; overflow-x:auto; } .summary th, .summary td { display:block; width:auto; }
  figure { padding:.4rem; } figure.half { display:block; width:auto; }
}
@media print { section { break-before:page; } figure, tr { break-inside:avoid; } }
"""
